"""Files of rows and media: strict errors with row and field, any row by offset, nothing from outside."""

import base64
import io
import json
import os
import tarfile
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.finetune.fetch import Fetcher
from watersmeet.pipelines.finetune.media import Media
from watersmeet.pipelines.finetune.rows import RowError, parse_row
from watersmeet.pipelines.finetune.sources import JsonlSource, open_source

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "is a list, expected an object"),
        ('{"messages": []}', "has no messages"),
        ('{"messages": "hi"}', "messages is a text"),
        ('{"message": []}', "has a field 'message'"),
        ('{"messages": [3]}', r"messages\[0\] is a number"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', r"messages\[0\].role is 'bot'"),
        ('{"messages": [{"role": "user", "text": "x"}]}', r"messages\[0\].text is unknown"),
        ('{"messages": [{"role": "user", "content": 7}]}', r"messages\[0\].content is a number"),
        ('{"messages": [{"role": "user", "content": [{"type": "imag", "imag": "a"}]}]}', "did you mean 'image'"),
        ('{"messages": [{"role": "user", "content": [{"type": "image", "image": 5}]}]}', r"\[0\].image is a number"),
        ('{"messages": [{"role": "user", "content": [{"type": "image", "url": "a"}]}]}', "has no field 'image'"),
        ('{"messages": [{"role": "user", "content": [{"type": "image", "image": ""}]}]}', "is empty"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": null}]}]}', r"\[0\].text is a null"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]}', "nothing to learn"),
        ('{"messages": [{"role": "user", "content": "x", "weight": -1}]}', "weight is -1"),
        ('{"messages": [{"role": "user", "content": "x", "weight": true}]}', "weight is True"),
        ('{"messages": [{"role": "user", "role": "user"}]}', "'role' stands twice"),
        ('{"messages": NaN}', "is not JSON"),
        ("{", "is not JSON"),
    ],
)
def test_a_wrong_row_names_the_field(line, words):
    with pytest.raises(RowError, match=f"^d.jsonl row 3: .*{words}"):
        parse_row(line.encode(), "d.jsonl row 3", ("image", "regions"))


def test_all_wrong_rows_are_told_before_training(models, rows, kit):
    good = kit.talk("one?", "Yes.")
    path = rows([good, "{", good, {"messages": 1}, good])
    with pytest.raises(
        RowError, match=r"2 of 5 rows are not as described: .*row 2: is not JSON.*row 4: messages is a number"
    ):
        kit.open(path, models.turns)
    with pytest.raises(RowError, match="row 1: nothing in it is learnt"):
        kit.open(rows([{"messages": [{"role": "user", "content": "x"}]}]), models.turns)
    path.write_bytes(json.dumps(good).encode() + b"\n\xff\xfe\n")
    with pytest.raises(RowError, match="row 2: is not UTF-8"):
        kit.open(path, models.turns)


def test_offsets_find_every_row_whatever_ends_the_lines(tmp_path, monkeypatch):
    lines = [b'{"a": 1}', b"", b'{"b": "\xc3\xa9"}', b"   ", b'{"c": 3}' + b" " * 50, b'{"d": 4}']
    for ending, last in ((b"\n", b""), (b"\r\n", b"\r\n")):
        path = tmp_path / "x.jsonl"
        path.write_bytes(b"\xef\xbb\xbf" + ending.join(lines) + last)
        for chunk in (1 << 20, 1, 7, 16):
            monkeypatch.setattr("watersmeet.pipelines.finetune.sources._CHUNK", chunk)
            source = JsonlSource(path)
            assert [json.loads(source.line(i)) for i in range(len(source))] == [
                {"a": 1},
                {"b": "é"},
                {"c": 3},
                {"d": 4},
            ]
            assert [source.number(i) for i in range(len(source))] == [1, 3, 5, 6]
    before = source.fingerprint
    path.write_bytes(path.read_bytes().replace(b"4", b"5"))
    assert JsonlSource(path).fingerprint != before


def test_a_large_file_costs_an_offset_a_row(tmp_path):
    path = tmp_path / "large.jsonl"
    row = (
        json.dumps({"messages": [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y"}]}) + "\n"
    )
    path.write_text(row * 200_000)
    begin = time.monotonic()
    source = JsonlSource(path)
    assert len(source) == 200_000 and time.monotonic() - begin < 5
    assert source.line(199_999) == row.encode() and source.where(123_456).endswith("row 123457")
    assert source._offsets.itemsize * len(source) == 1_600_000


def test_other_endings_and_empty_files(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "b.jsonl").write_text("\n\n")
    with pytest.raises(RowError, match="watersmeet data convert"):
        open_source(tmp_path / "a.json")
    with pytest.raises(RowError, match="holds no rows"):
        open_source(tmp_path / "b.jsonl")
    with pytest.raises(RowError, match="cannot be read"):
        open_source(tmp_path / "c.jsonl")


# ---- media ----------------------------------------------------------------------------------------------------------


def test_paths_stay_in_their_folder(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.png").write_bytes(b"x")
    (tmp_path / "root" / "a.png").write_bytes(b"a")
    os.symlink(tmp_path / "secret.png", tmp_path / "root" / "link.png")
    media = Media(root=tmp_path / "root")
    assert media.find("a.png") == (tmp_path / "root" / "a.png").resolve()
    for value in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "/etc/passwd"):
        with pytest.raises(DecodeError, match="lies outside"):
            media.find(value)
    for value, words in (("b.png", "no such file"), (".", "is a folder"), ("a\0b", "zero byte")):
        with pytest.raises(DecodeError, match=words):
            media.find(value)
    assert media.find("data:image/png;base64," + base64.b64encode(b"abc").decode()) == b"abc"
    with pytest.raises(DecodeError, match="damaged base64"):
        media.find("data:image/png;base64,@@@")
    for url in ("https://example.org/a.png", "http://example.org/a.png", "file:///etc/passwd", "ftp://x/y"):
        with pytest.raises(DecodeError, match="switched off"):
            media.find(url)


def fetcher(handler, addresses, **options):
    asked = []

    def answer(request):
        asked.append(request)
        return handler(request)

    def resolve(host, port):
        found = addresses.get(host, [host])
        if not found:
            raise OSError("no such host")
        return found

    made = Fetcher(transport=httpx.MockTransport(answer), resolve=resolve, **options)
    made.asked = asked
    return made


def test_addresses_are_https_public_and_bounded():
    def handler(request):
        assert request.url.host == "93.184.216.34" and request.headers["host"] == "example.org"
        assert request.extensions["sni_hostname"] == "example.org"
        return httpx.Response(200, content=b"x" * 100)

    known = {"example.org": ["93.184.216.34"]}
    assert fetcher(handler, known)("https://example.org/a.png") == b"x" * 100
    with pytest.raises(DecodeError, match="larger than the limit of 50"):
        fetcher(handler, known, max_bytes=50)("https://example.org/a.png")
    with pytest.raises(DecodeError, match="not https"):
        fetcher(handler, known)("http://example.org/a.png")
    with pytest.raises(DecodeError, match="user name"):
        fetcher(handler, known)("https://me@example.org/a.png")
    with pytest.raises(DecodeError, match="not known"):
        fetcher(handler, {"example.org": []})("https://example.org/a.png")
    with pytest.raises(DecodeError, match="answered 404"):
        fetcher(lambda request: httpx.Response(404), known)("https://example.org/a.png")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "0.0.0.0", "100.64.0.1", "::1", "fe80::1", "fc00::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "224.0.0.1"],
)  # fmt: skip
def test_private_addresses_are_refused_at_first_and_at_every_redirect(address):
    def handler(request):
        return httpx.Response(302, headers={"location": "https://inside.example/secret"})

    direct = fetcher(handler, {"inside.example": [address]})
    with pytest.raises(DecodeError, match="not a public address"):
        direct("https://inside.example/x")
    assert not direct.asked
    via = fetcher(handler, {"example.org": ["93.184.216.34"], "inside.example": ["93.184.216.34", address]})
    with pytest.raises(DecodeError, match=r"example.org/x: redirects to https://inside.example/secret.*not a public"):
        via("https://example.org/x")
    assert len(via.asked) == 1


def test_redirects_end_and_never_leave_https():
    known = {"example.org": ["93.184.216.34"]}
    down = fetcher(lambda r: httpx.Response(301, headers={"location": "http://example.org/a"}), known)
    with pytest.raises(DecodeError, match="not https"):
        down("https://example.org/x")
    loop = fetcher(lambda r: httpx.Response(301, headers={"location": "/x"}), known, redirects=3)
    with pytest.raises(DecodeError, match="more than 3 redirects"):
        loop("https://example.org/x")
    assert len(loop.asked) == 4


def test_a_slow_answer_ends(monkeypatch):
    def drip():
        for _ in range(100):
            time.sleep(0.02)
            yield b"x" * (1 << 16)

    slow = fetcher(lambda r: httpx.Response(200, content=drip()), {"example.org": ["93.184.216.34"]}, seconds=0.1)
    with pytest.raises(DecodeError, match="longer than 0.1 s"):
        slow("https://example.org/x")


def test_fetched_files_are_kept_for_the_next_epoch(tmp_path):
    known = {"example.org": ["93.184.216.34"]}
    one = fetcher(lambda r: httpx.Response(200, content=b"first"), known, cache=tmp_path)
    assert one("https://example.org/x") == one("https://example.org/x") == b"first" and len(one.asked) == 1


# ---- what is wrong with single rows ---------------------------------------------------------------------------------


def test_fault_29_a_corrupt_picture_in_row_40000_is_quarantined_with_its_row(models, rows, kit, tmp_path):
    (tmp_path / "good.png").write_bytes(kit.png())
    (tmp_path / "bad.png").write_bytes(kit.png()[:45])
    many = [json.dumps(kit.about("good.png"))] * 40_001
    many[39_999] = json.dumps(kit.about("bad.png"))
    note = tmp_path / "out" / "quarantine.jsonl"
    path = rows(many)
    data = kit.open(path, models.turns)
    data.work_in(tmp_path / "out")
    data.sample(39_998, RNG)
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"row 40000: .*bad.png"):
            data.sample(39_999, RNG)
    [line] = note.read_text().splitlines()
    kept = json.loads(line)
    assert kept["row"] == 40_000 and kept["file"] == str(path) and "bad.png" in kept["reason"]
    # a second process, or a resumed run, does not write it again
    again = kit.open(path, models.turns)
    again.work_in(tmp_path / "out")
    with pytest.raises(DecodeError):
        again.sample(39_999, RNG)
    assert len(note.read_text().splitlines()) == 1


def test_the_share_of_unreadable_rows_is_bounded_and_none_is_replaced(models, rows, kit, tmp_path):
    from watersmeet.core.errors import WatersmeetError
    from watersmeet.core.training.packing import Packer

    (tmp_path / "good.png").write_bytes(kit.png())
    many = [kit.about("good.png" if i % 4 else "gone.png") for i in range(80)]
    data = kit.open(rows(many), models.turns)
    data.work_in(tmp_path)
    strict = Packer(data, tokens=128, fill_modality="text", pool=4, max_bad_fraction=0.05)
    with pytest.raises(
        WatersmeetError, match=r"could not be read.*max_bad_fraction 0.05; last one: .*row \d+: .*gone.png"
    ):
        for _ in range(80):
            strict.next_batch()
    lax = Packer(data, tokens=128, fill_modality="text", pool=4, max_bad_fraction=0.5, repeat=False)
    seen = []
    while True:
        try:
            seen += [index for _, index in lax.next_batch().samples]
        except StopIteration:
            break
    assert sorted(seen) == [i for i in range(80) if i % 4] and lax.counts["bad"] == 20
    assert len((tmp_path / "quarantine.jsonl").read_text().splitlines()) == 20


def test_fault_27_sixty_megapixels_cost_no_more_tokens_and_larger_ones_are_refused(models, rows, kit, tmp_path):
    Image.new("1", (10_000, 6_000)).save(tmp_path / "large.png")
    Image.new("1", (10_000, 7_000)).save(tmp_path / "larger.png")
    data = kit.open(rows([kit.about("large.png"), kit.about("larger.png")]), models.turns)
    spans = {span.modality: span.n for span in data.sample(0, RNG).spans}
    assert spans["image"] <= 16
    with pytest.raises(DecodeError, match="70,000,000 pixels are more than the limit of 64,000,000"):
        data.sample(1, RNG)


def test_fault_30_rotated_photos_are_upright_as_in_use(models, rows, kit, tmp_path):
    picture = Image.new("RGB", (16, 8), "red")
    picture.putpixel((0, 0), (0, 0, 255))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.png", exif=exif)
    out = io.BytesIO()
    picture.transpose(Image.Transpose.ROTATE_270).save(out, "PNG")
    (tmp_path / "upright.png").write_bytes(out.getvalue())
    data = kit.open(rows([kit.about("turned.png"), kit.about("upright.png")]), models.turns)
    a, b = (next(s for s in data.sample(i, RNG).spans if s.modality == "image") for i in (0, 1))
    assert (a.data == b.data).all() and a.coords.tolist() == b.coords.tolist()


def test_fault_28_settings_of_pictures_come_from_the_checkpoint_alone(models, rows, kit, tmp_path):
    (tmp_path / "a.png").write_bytes(kit.png(size=(400, 400)))
    data = kit.open(rows([kit.about("a.png")]), models.turns)
    from watersmeet.pipelines.models.local import load_local

    local = load_local(models.turns)
    [used] = local.encoders["image"].encode(tmp_path / "a.png")
    [trained] = [s for s in data.sample(0, RNG).spans if s.modality == "image"]
    assert used.key == trained.key and data.modalities == local.recipe["modalities"]


def test_a_tar_of_samples(models, kit, tmp_path):
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for i in range(3):
            row = json.dumps(kit.about("png" if i else "000.png")).encode()
            for name, content in ((f"d/{i:03}.png", kit.png()), (f"d/{i:03}.json", row)):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    data = kit.open(path, models.turns)
    assert len(data) == 3
    for i in range(3):
        assert {s.modality for s in data.sample(i, RNG).spans} == {"text", "image"}
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(RowError, match="cannot be read as an uncompressed tar|row 1"):
        kit.open(path, models.turns)


def test_shards_are_one_set(models, rows, kit, tmp_path):
    (tmp_path / "good.png").write_bytes(kit.png())
    rows([kit.about("good.png"), kit.talk("one?", "Yes.")], "part-0.jsonl")
    rows([kit.about("gone.png")], "part-1.jsonl")
    data = kit.open(tmp_path / "part-*.jsonl", models.turns)
    data.work_in(tmp_path / "out")
    assert len(data) == 3
    for i in (0, 1):
        data.sample(i, RNG)
    with pytest.raises(DecodeError, match="part-1.jsonl row 1: .*gone.png"):
        data.sample(2, RNG)
    kept = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text())
    assert kept["row"] == 1 and kept["file"].endswith("part-1.jsonl")
    rows(["{"], "part-2.jsonl")
    with pytest.raises(RowError, match="1 of 4 rows.*part-2.jsonl row 1: is not JSON"):
        kit.open(tmp_path / "part-*.jsonl", models.turns)
    with pytest.raises(RowError, match="no file has a name"):
        open_source(tmp_path / "other-*.jsonl")
