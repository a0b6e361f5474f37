# SPDX-License-Identifier: Apache-2.0
"""Small PNG files: with a palette, as pictures of a page need few colours."""

from __future__ import annotations

import base64
import struct
import zlib

from playwright.sync_api import Page

#: The 256 most frequent colours, and each pixel as the nearest of them.
_PALETTE = """async (address) => {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    const pixels = new Uint32Array(canvas.getImageData(0, 0, image.width, image.height).data.buffer);
    const counts = new Map();
    for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    const colours = [...counts].sort((one, other) => other[1] - one[1]).map(([pixel]) => pixel);
    const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
    const palette = colours.slice(0, 256).map(parts);
    const distance = (one, other) => one.reduce((sum, value, place) => sum + (value - other[place]) ** 2, 0);
    const nearest = (colour) => palette.reduce((best, _, place) =>
        distance(colour, palette[place]) < distance(colour, palette[best]) ? place : best, 0);
    const places = new Map(colours.map((pixel, place) => [pixel, place < 256 ? place : nearest(parts(pixel))]));
    let text = "";
    for (const pixel of pixels) text += String.fromCharCode(places.get(pixel));
    return { width: image.width, palette, pixels: btoa(text) };
}"""


def with_palette(picture: bytes, page: Page) -> bytes:
    """Return a picture with at most 256 colours.

    Args:
        picture: The PNG file.
        page: An empty page, whose browser decodes it.
    """
    found = page.evaluate(_PALETTE, f"data:image/png;base64,{base64.b64encode(picture).decode()}")
    pixels, width = base64.b64decode(found["pixels"]), found["width"]
    lines = [b"\0" + pixels[start : start + width] for start in range(0, len(pixels), width)]
    header = struct.pack(">IIBBBBB", width, len(lines), 8, 3, 0, 0, 0)
    colours = bytes(value for colour in found["palette"] for value in colour)
    chunks = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", zlib.compress(b"".join(lines), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
