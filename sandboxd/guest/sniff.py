"""What kind of content a file has, by its first bytes and never by its name."""

from __future__ import annotations

import codecs

SNIFF_BYTES = 8 * 1024

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)

# Sure signs: they hold bytes that no text begins with, so NUL need not be seen.
_SURE: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", "7-zip archive"),
    (b"\x7fELF", "ELF program"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"\x00asm", "WebAssembly module"),
    (b"SQLite format 3\x00", "SQLite database"),
)

# A text may begin like this: signs only where the bytes are not UTF-8 either. Small
# files of these kinds need not hold NUL.
_SPELLED: tuple[tuple[bytes, str], ...] = (
    (b"GIF87a", "GIF image"),
    (b"GIF89a", "GIF image"),
    (b"%PDF-", "PDF document"),
    (b"BZh91AY&SY", "bzip2 data"),
)

# Hints: only worth saying once NUL has shown that the content is binary.
_LIKELY: tuple[tuple[bytes, str], ...] = (
    (b"BZh", "bzip2 data"),
    (b"MZ", "Windows program"),
    (b"ID3", "MP3 audio"),
    (b"OggS", "Ogg media"),
    (b"fLaC", "FLAC audio"),
    (b"RIFF", "RIFF media"),
    (b"BM", "BMP image"),
    (b"II*\x00", "TIFF image"),
    (b"MM\x00*", "TIFF image"),
    (b"\x00\x00\x01\x00", "icon"),
    (b"wOFF", "WOFF font"),
    (b"wOF2", "WOFF font"),
    (b"PACK", "git pack"),
    (b"!<arch>\n", "ar archive"),
)


def encoding_of(head: bytes) -> tuple[str, int]:
    """Codec of a text and the size of its byte order mark; UTF-8 where there is none."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name, len(mark)
    return "utf-8", 0


def binary_type(head: bytes) -> str | None:
    """None for text; else what the bytes are, empty where the magic says nothing.

    `head` is the beginning of the file, of which `SNIFF_BYTES` count.
    """
    head = head[:SNIFF_BYTES]
    for magic, name in _SURE:
        if head.startswith(magic):
            return name
    encoding, _ = encoding_of(head)
    if encoding != "utf-8":
        return None
    if b"\0" not in head:
        return _spelled(head)
    for magic, name in (*_SPELLED, *_LIKELY):
        if head.startswith(magic):
            return name
    if head[4:8] == b"ftyp":
        return "MP4 media"
    if head[257:262] == b"ustar":
        return "tar archive"
    return ""


def _spelled(head: bytes) -> str | None:
    for magic, name in _SPELLED:
        if head.startswith(magic):
            try:
                # The last character may be cut.
                codecs.utf_8_decode(head, "strict", False)
            except UnicodeDecodeError:
                return name
    return None
