"""From the bytes that a stranger sent to pixels that can be trusted."""

from wdae.serve.uploads.decoders import Decoders, Picture, Refused

__all__ = ["Decoders", "Picture", "Refused"]
