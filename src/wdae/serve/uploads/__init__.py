"""From the bytes that a stranger sent to pixels that can be trusted."""

from wdae.serve.uploads.decoders import DecodedPicture, Decoders, Refused, shown_name

__all__ = ["DecodedPicture", "Decoders", "Refused", "shown_name"]
