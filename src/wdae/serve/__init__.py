"""``wdae serve``: a page and an API to teach models, on SQLite and a folder, or on PostgreSQL and S3."""
