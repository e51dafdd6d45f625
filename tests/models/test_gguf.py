"""The GGUF reader: what it reads against the gguf package's reader, and what it refuses."""

import os
import struct
from dataclasses import dataclass, field

import gguf
import numpy as np
import pytest
from tiny import write_tiny

from foredraft.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from foredraft.models.cache import model_path
from foredraft.models.cursor import HEADER_LIMIT
from foredraft.models.gguf import read_gguf

SMOLLM2 = model_path("smollm2-135m")
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


@dataclass
class Header:
    """A GGUF file by hand, each part open to falsification."""

    magic: bytes = b"GGUF"
    version: int = 3
    pairs: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    pair_count: int | None = None
    tensor_count: int | None = None
    data: bytes = bytes(256)

    def write(self, path):
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        pair_count = len(self.pairs) if self.pair_count is None else self.pair_count
        head = self.magic + struct.pack("<IQQ", self.version, tensor_count, pair_count)
        head += b"".join(self.pairs) + b"".join(self.tensors)
        path.write_bytes(head + bytes(-len(head) % 32) + self.data)
        return path


def text(raw):
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name=b"w", shape=(32,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.fixture
def refuse(tmp_path):
    """Reading the header must raise, with these words."""

    def check(header, words, error=ModelFileError):
        with pytest.raises(error, match=words):
            read_gguf(header.write(tmp_path / "bad.gguf"))

    return check


# What is read


def assert_reads_like_the_gguf_package(path):
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    expected = {key: value for key, value in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == expected.keys()
    assert ours.version == theirs.fields["GGUF.version"].contents()
    for key, value in ours.metadata.items():
        if isinstance(value, list | np.ndarray):
            some = slice(None, None, 1 + len(value) // 2000)  # the gguf package takes its time
            assert list(value[some]) == expected[key].contents(some), key
            assert len(value) == len(expected[key].data), key
        else:
            assert value == expected[key].contents(), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for other in theirs.tensors:
        info = ours.tensors[other.name]
        assert info.type == other.tensor_type.name
        assert info.shape == tuple(int(length) for length in reversed(other.shape))
        assert (info.offset, info.nbytes) == (other.data_offset, other.n_bytes)
    for other in theirs.tensors[:3]:
        assert ours.read(other.name).tobytes() == other.data.tobytes()


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_tiny_files_read_like_in_the_gguf_package(tmp_path, family):
    kinds = ("Q4_0", "F16", "Q8_0", "BF16", "Q4_1", "Q5_0", "Q5_1", "F32", "Q4_K", "Q5_K", "Q6_K")
    sizes = {"dim": 256, "ff": 256, "heads": 4, "head_dim": 64, "layers": 2}
    path = write_tiny(tmp_path / "tiny.gguf", family, quant=kinds, tied=False, **sizes)
    assert_reads_like_the_gguf_package(path)


@pytest.mark.skipif(not SMOLLM2.is_file(), reason="needs smollm2-135m (foredraft pull smollm2-135m)")
def test_a_real_file_reads_like_in_the_gguf_package():
    assert_reads_like_the_gguf_package(SMOLLM2)


def test_values_of_every_type_are_read(tmp_path):
    numbers = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
    pairs = [pair(b"%d" % kind, kind, struct.pack(form, 77)) for kind, form in numbers.items()]
    pairs += [pair(b"flag", BOOL, b"\1"), pair(b"text", STRING, text("é\0".encode()))]
    pairs += [pair(b"flags", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\0\1")]
    pairs += [pair(b"none", ARRAY, struct.pack("<IQ", STRING, 0))]
    metadata = read_gguf(Header(pairs=pairs).write(tmp_path / "a.gguf")).metadata
    assert all(metadata[str(kind)] == 77 for kind in numbers)
    assert isinstance(metadata["6"], float)
    assert metadata["flag"] is True
    assert metadata["text"] == "é\0"
    assert metadata["flags"].tolist() == [False, True]
    assert metadata["none"] == []


def test_text_that_is_not_utf8_keeps_its_bytes(tmp_path):
    odd = b"\xff\xc3(\xed\xa0\x80"
    pairs = [pair(b"one", STRING, text(odd)), pair(b"many", ARRAY, struct.pack("<IQ", STRING, 1) + text(odd))]
    metadata = read_gguf(Header(pairs=pairs).write(tmp_path / "a.gguf")).metadata
    assert metadata["one"].encode("utf-8", "surrogateescape") == odd
    assert metadata["many"][0].encode("utf-8", "surrogateescape") == odd


def test_version_2_and_another_alignment_are_read(tmp_path):
    pairs = [pair(b"general.alignment", U32, struct.pack("<I", 64))]
    header = Header(version=2, pairs=pairs, tensors=[tensor(offset=64)])
    file = read_gguf(header.write(tmp_path / "a.gguf"))
    assert file.version == 2
    assert file.tensors["w"].offset == 192  # 94 bytes of header, rounded up to 128


def test_tensors_may_lie_in_any_order(tmp_path):
    tensors = [tensor(b"late", offset=128), tensor(b"early", offset=0)]
    file = read_gguf(Header(tensors=tensors).write(tmp_path / "a.gguf"))
    assert file.tensors["late"].offset - file.tensors["early"].offset == 128


# What is refused


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_gguf(tmp_path / "none.gguf")


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ModelFileError, match="not a regular file"):
            read_gguf(path)
    with pytest.raises(ModelFileError, match="empty"):
        read_gguf(tmp_path / "empty")


def test_another_format_is_named_as_such(refuse):
    refuse(Header(magic=b"<htm"), "not a GGUF file")


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_other_versions_are_refused(refuse, version):
    refuse(Header(version=version), "versions 2 and 3", UnsupportedModelError)


def test_big_endian_files_are_refused(refuse):
    refuse(Header(version=3 << 24), "big-endian", UnsupportedModelError)


def test_a_part_of_a_split_model_is_refused(refuse):
    pairs = [pair(b"split.count", 2, struct.pack("<H", 3))]
    refuse(Header(pairs=pairs), "3 parts", UnsupportedModelError)


@pytest.mark.parametrize("count", [320, 10**6, 2**40, 2**63, 2**64 - 32])
def test_absurd_counts_are_refused(refuse, count):
    refuse(Header(tensor_count=count), "tensors cannot fit|tensor name")
    refuse(Header(pair_count=count), "entries cannot fit|metadata key")
    for kind in (0, U32, U64, F32, STRING):
        array = pair(b"key", ARRAY, struct.pack("<IQ", kind, count))
        refuse(Header(pairs=[array]), "'key'")
    refuse(Header(pairs=[pair(b"key", STRING, struct.pack("<Q", count))]), "'key'")
    refuse(Header(pairs=[struct.pack("<Q", count)]), "metadata key")
    refuse(Header(tensors=[tensor(shape=(count,))]), "'w' would end at")
    refuse(Header(tensors=[tensor(shape=(32, 1, count, 2**62))]), "'w' would end at")
    refuse(Header(tensors=[tensor(offset=count)]), "'w' would end at")


@pytest.mark.parametrize("alignment", [0, 1, 4, 31, 48, 2**31])
def test_alignments_that_are_none_are_refused(refuse, alignment):
    pairs = [pair(b"general.alignment", U32, struct.pack("<I", alignment))]
    words = "would end" if alignment == 2**31 else "general.alignment"
    refuse(Header(pairs=pairs, tensors=[tensor()]), words)


def test_an_alignment_that_is_no_number_is_refused(refuse):
    refuse(Header(pairs=[pair(b"general.alignment", STRING, text(b"32"))]), "general.alignment")


@pytest.mark.parametrize("shape", [(0,), (32, 0), (0, 2**63)])
def test_empty_tensors_are_refused(refuse, shape):
    refuse(Header(tensors=[tensor(shape=shape)]), "is empty")


@pytest.mark.parametrize("dimensions", [0, 5, 2**32 - 1])
def test_too_few_or_many_dimensions_are_refused(refuse, dimensions):
    broken = text(b"w") + struct.pack("<I", dimensions) + bytes(64)
    refuse(Header(tensors=[broken]), "dimensions")


def test_overlapping_tensors_are_refused(refuse):
    refuse(Header(tensors=[tensor(b"a"), tensor(b"b", offset=96)]), "overlap")
    refuse(Header(tensors=[tensor(b"a", offset=96), tensor(b"b")]), "overlap")
    refuse(Header(tensors=[tensor(b"a"), tensor(b"b")]), "overlap")


def test_misaligned_tensors_are_refused(refuse):
    refuse(Header(tensors=[tensor(offset=8)]), "multiple of 32")


def test_rows_that_are_no_whole_blocks_are_refused(refuse):
    refuse(Header(tensors=[tensor(shape=(48, 2), kind=2)]), "Q4_0 takes multiples of 32")


def test_names_that_occur_twice_are_refused(refuse):
    refuse(Header(tensors=[tensor(), tensor(offset=128)]), "tensor 'w' occurs twice")
    twice = pair(b"key", U32, bytes(4))
    refuse(Header(pairs=[twice, twice]), "key 'key' occurs twice")


def test_types_that_are_not_known_are_refused(refuse):
    refuse(Header(tensors=[tensor(shape=(256,), kind=10)]), "Q2_K; supported are F32", UnsupportedModelError)
    refuse(Header(tensors=[tensor(kind=4)]), "unknown type 4")
    refuse(Header(tensors=[tensor(kind=2**31)]), "unknown type")
    refuse(Header(pairs=[pair(b"key", 13, bytes(8))]), "unknown value type 13")
    array = pair(b"key", ARRAY, struct.pack("<IQ", 99, 1) + bytes(8))
    refuse(Header(pairs=[array]), "unknown value type 99")


def test_arrays_of_arrays_are_refused(refuse):
    inner = struct.pack("<IQ", ARRAY, 1) * 100
    refuse(Header(pairs=[pair(b"key", ARRAY, inner)]), "array of arrays", UnsupportedModelError)


@pytest.mark.parametrize("name", [b"", b"a\0b", b"\xff", b"x" * 65536])
def test_names_that_are_none_are_refused(refuse, name):
    refuse(Header(tensors=[tensor(name)]), "tensor name")
    refuse(Header(pairs=[pair(name, U32, bytes(4))]), "metadata key")


def test_truth_values_other_than_0_and_1_are_refused(refuse):
    refuse(Header(pairs=[pair(b"key", BOOL, b"\2")]), "truth value")


def test_a_header_without_end_is_refused(tmp_path):
    def with_array_of(count):
        array = pair(b"key", ARRAY, struct.pack("<IQ", 0, count))
        path = Header(pairs=[array], data=b"").write(tmp_path / "long.gguf")
        os.truncate(path, 2 * HEADER_LIMIT)  # zeros that take no room
        return read_gguf(path)

    assert len(with_array_of(HEADER_LIMIT - 100).metadata["key"]) == HEADER_LIMIT - 100
    with pytest.raises(ModelFileError, match="within the limit of 64 MiB"):
        with_array_of(HEADER_LIMIT)


# Damage to a sound file


def test_a_header_cut_off_anywhere_is_refused(tmp_path):
    whole = write_tiny(tmp_path / "tiny.gguf", "qwen2").read_bytes()
    header = min(info.offset for info in read_gguf(tmp_path / "tiny.gguf").tensors.values())
    cut = tmp_path / "cut.gguf"
    for percent in range(100):
        cut.write_bytes(whole[: header * percent // 100])
        with pytest.raises(ModelFileError):
            read_gguf(cut)
    for length in (header, header + 1, len(whole) - 33):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match="would end at"):
            read_gguf(cut)


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf")
    file = read_gguf(path)
    info = max(file.tensors.values(), key=lambda info: info.offset)
    os.truncate(path, info.offset + 5)
    with pytest.raises(ModelFileError, match="shorter since it was opened"):
        file.read(info.name)
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot read"):
        file.read(info.name)
