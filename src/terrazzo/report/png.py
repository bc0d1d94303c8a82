"""Small pictures as PNG, written here: a grid of colours needs no library."""

import base64
import struct
import zlib

import numpy as np


def encode(pixels: np.ndarray) -> bytes:
    r"""A PNG of colours (row, column, 3), 8 bits a channel; few colours are stored as a palette.

    >>> encode(np.zeros((2, 3, 3), np.uint8))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    height, width, _ = pixels.shape
    colours, codes = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    has_palette = len(colours) <= 256
    rows = codes.reshape(height, width).astype(np.uint8) if has_palette else pixels.reshape(height, 3 * width)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows.astype(np.uint8)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 3 if has_palette else 2, 0, 0, 0)
    palette = [_chunk(b"PLTE", colours.astype(np.uint8).tobytes())] if has_palette else []
    data = _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
    return b"".join([b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", header), *palette, data, _chunk(b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(pixels: np.ndarray) -> str:
    """The picture as the address of an `img`."""
    return f"data:image/png;base64,{base64.b64encode(encode(pixels)).decode()}"
