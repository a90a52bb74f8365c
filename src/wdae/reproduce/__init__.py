"""The paper's tables, row by row, beside its figures: ``wdae reproduce``."""
