"""Two plugins that keep the contract, and many that break it in one place each: what is changed, and which check says so."""

PHOTO = """
from watersmeet import ModalitySpec, hookimpl

@hookimpl
def register_modalities():
    return [ModalitySpec(name={name!r}, media_types=("image/png",), atomic=True,
                         encoder=__name__ + "_parts:Encoder", embedder=__name__ + "_parts:Embedder")]
"""

# each row of a picture, shrunk to a few columns, is a token; the rows follow each other in time
PHOTO_PARTS = """
import numpy as np
import torch
from torch import nn
from watersmeet import DecodeError, Span, content_key
from watersmeet.tokenizers.image.decode import load_image

VERSION = 1
NAME = {name!r}


class Encoder:
    def __init__(self, settings=None):
        self.settings = {{"columns": 4, "limit": 48}} | dict(settings or {{}})
        self.files = {{}}

    @property
    def max_tokens(self):
        return self.settings["limit"]

    def rows(self, picture):
        return min(picture.height, self.settings["limit"])

    def open(self, item):
        return load_image(item)[0]

    def key(self, pixels):
        return content_key(NAME, VERSION, self.settings, pixels.shape, pixels.tobytes())

    def times(self, n):
        return torch.arange(n) * 1000

    def span(self, data, times, key):
        n = len(data)
        return Span(modality=NAME, data=data, coords=torch.arange(n)[:, None], time_us=times, key=key)

    def encode(self, item):
        picture = self.open(item)
        pixels = np.asarray(picture.resize((self.settings["columns"], self.rows(picture))))
        data = torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.float32) / 255)
        return [self.span(data, self.times(len(data)), self.key(pixels))]


class Embedder(nn.Module):
    def __init__(self, hidden_size, settings):
        super().__init__()
        self.map = nn.Linear(3 * settings["columns"], hidden_size)

    def forward(self, data, coords, time_us=None):
        return self.after(self.map(data.to(self.map.weight.dtype)))

    def after(self, x):
        return x
"""

LETTERS = """
from watersmeet import ModalitySpec, hookimpl

@hookimpl
def register_modalities():
    parts = __name__ + "_parts"
    return [ModalitySpec(name={name!r}, media_types=("text/plain",), writes=True, encoder=parts + ":Encoder",
                         embedder=parts + ":Embedder", decoder=parts + ":Decoder")]
"""

# each character is a token; id 1 is a control id that no text makes
LETTERS_PARTS = """
import torch
from torch import nn
from watersmeet import DecodeError, Span, content_key

VERSION = 1
NAME = {name!r}


class Encoder:
    symbols = {{"<end>": 1}}

    def __init__(self, settings=None):
        self.settings, self.files = {{"shift": 10}}, {{}}

    def ids(self, text):
        return [ord(letter) + 10 for letter in text]

    def encode(self, item):
        if isinstance(item, bytes):
            try:
                item = item.decode()
            except UnicodeDecodeError as error:
                raise DecodeError(str(error)) from error
        if not isinstance(item, str):
            raise DecodeError(f"expected a text, got a {{type(item).__name__}}")
        data = torch.tensor(self.ids(item), dtype=torch.int64)
        key = content_key(NAME, VERSION, self.settings, item.encode("utf-8", "surrogatepass"))
        return [Span(modality=NAME, data=data, key=key)]


class Embedder(nn.Module):
    def __init__(self, hidden_size, settings):
        super().__init__()
        self.map = nn.Linear(1, hidden_size)

    def forward(self, data, coords, time_us=None):
        return self.map((data / 1000).to(self.map.weight.dtype)[:, None])


class Decoder:
    def __init__(self, settings):
        pass

    def decode(self, ids):
        return "".join(chr(number - 10) for number in ids)
"""

ENCODER = "\nclass Encoder(Encoder):\n"
EMBEDDER = "\nclass Embedder(Embedder):\n"

# name: (base, added to the plugin's module, added to the module of its parts, number of the check, words of its finding)
FAULTS = {
    "prints": ("photo", "print('hello')", "", 1, "prints 'hello"),
    "is heavy": ("photo", "import jax", "", 1, "imports jax"),
    "breaks": ("photo", "raise OSError('no device')", "", 1, "OSError: no device"),
    "misspells a hook": ("photo", "@hookimpl\ndef register_modalites(): return []", "", 1, "did you mean"),
    "exits": ("photo", "raise SystemExit", "", 1, "SystemExit"),
    "is from the future": (
        "photo",
        "def register_modalities():\n    return [ModalitySpec(name='x', contract=2, encoder='a:b', embedder='a:b')]\n"
        "register_modalities = hookimpl(register_modalities)",
        "",
        2,
        "written for contract 2",
    ),
    "holds a lambda": (
        "photo",
        "",
        ENCODER
        + "    def __init__(self, settings=None):\n        super().__init__(settings)\n        self.f = lambda: 0",
        3,
        "cannot be sent",
    ),
    "depends on the process": (
        "photo",
        "",
        "import multiprocessing" + ENCODER + "    def times(self, n):\n"
        "        return super().times(n) + (multiprocessing.parent_process() is not None)",
        3,
        "other columns in a spawned process",
    ),
    "forgets a column": (
        "photo",
        "",
        ENCODER + "    def span(self, data, times, key):\n"
        "        return super().span(data, times if len(data) > 45 else None, key)",
        4,
        "column time_us is None",
    ),
    "is of no number": (
        "photo",
        "",
        ENCODER + "    def span(self, data, times, key):\n        return super().span(data / data * 0 / 0, times, key)",
        4,
        "NaN",
    ),
    "gives one span": (
        "photo",
        "",
        ENCODER + "    def encode(self, item):\n        return super().encode(item)[0]",
        4,
        "encode gave a Span, expected a list",
    ),
    "takes another's name": ("photo", "", "NAME = 'image'", 4, "expected"),
    "counts its calls": (
        "photo",
        "",
        "calls = 0" + ENCODER + "    def span(self, data, times, key):\n        global calls\n        calls += 1\n"
        "        return super().span(data + calls, times, key)",
        5,
        "other columns than before",
    ),
    "forgets settings": (
        "photo",
        "",
        ENCODER + "    def open(self, item):\n        picture = super().open(item)\n"
        "        self.content = picture.tobytes()\n        return picture\n"
        "    def key(self, pixels):\n        return content_key(NAME, VERSION, self.content)",
        6,
        "same key",
    ),
    "forgets the version": (
        "photo",
        "",
        ENCODER + "    def key(self, pixels):\n        return content_key(NAME, self.settings, pixels.tobytes())",
        6,
        "another VERSION gives the same key",
    ),
    "looks at little": (
        "photo",
        "",
        ENCODER + "    def key(self, pixels):\n        return content_key(NAME, VERSION, self.settings)",
        6,
        "one key",
    ),
    "hashes by chance": (
        "photo",
        "",
        ENCODER + "    def key(self, pixels):\n"
        "        return content_key(NAME, VERSION, self.settings, hash(pixels.tobytes()), pixels.tobytes())",
        6,
        "another process",
    ),
    "keys the path": (
        "photo",
        "",
        ENCODER
        + "    def encode(self, item):\n        self.form = type(item).__name__\n        return super().encode(item)\n"
        "    def key(self, pixels):\n        return content_key(self.form, super().key(pixels))",
        6,
        "another key when it is given as",
    ),
    "has no limit": (
        "photo",
        "",
        ENCODER + "    def rows(self, picture):\n        return min(picture.height, 1000)\n"
        "    def encode(self, item):\n        return super().encode(item)",
        7,
        "max_tokens is 48",
    ),
    "does not say its limit": ("photo", "", ENCODER + "    max_tokens = None", 7, "needs a property max_tokens"),
    "breaks on the odd": (
        "photo",
        "",
        ENCODER
        + "    def rows(self, picture):\n        assert picture.height > 1\n        return super().rows(picture)",
        7,
        "raised AssertionError",
    ),
    "promises too much": ("photo", "", ENCODER + "    max_tokens = 500", 8, "gives 48 tokens, but max_tokens is 500"),
    "needs a token": (
        "photo",
        "",
        EMBEDDER + "    def after(self, x):\n        assert len(x)\n        return x",
        9,
        "with 0 tokens",
    ),
    "keeps a dtype": (
        "photo",
        "",
        EMBEDDER + "    def after(self, x):\n        return x.float()",
        9,
        "weights in bfloat16 it gave float32",
    ),
    "idles": (
        "photo",
        "",
        EMBEDDER + "    def __init__(self, hidden_size, settings):\n        super().__init__(hidden_size, settings)\n"
        "        self.spare = nn.Linear(2, 2)",
        9,
        "spare.weight gets no gradient",
    ),
    "is too wide": ("photo", "", EMBEDDER + "    def after(self, x):\n        return x[:, :-1]", 9, "expected ("),
    "centres the segment": (
        "photo",
        "",
        EMBEDDER + "    def after(self, x):\n        return x - x.sum(0) / max(len(x), 1)",
        10,
        "embedded together differ",
    ),
    "goes back in time": (
        "photo",
        "",
        ENCODER + "    def times(self, n):\n        return torch.arange(n).flip(0)",
        11,
        "time_us goes back at token 1",
    ),
    "is in one place": (
        "photo",
        "",
        ENCODER + "    def span(self, data, times, key):\n"
        "        return Span(modality=NAME, data=data, coords=torch.zeros(len(data), 1, dtype=torch.int64),\n"
        "                    time_us=times // 2000, key=key)",
        11,
        "the same time_us and the same coordinates",
    ),
    "leaks when it trains": (
        "photo",
        "",
        EMBEDDER + "    def after(self, x):\n        return x - x.sum(0) / max(len(x), 1) if self.training else x",
        12,
        "it changed a sample of the same batch",
    ),
    "writes it small": (
        "letters",
        "",
        "\nclass Decoder(Decoder):\n    def decode(self, ids):\n        return super().decode(ids).lower()",
        13,
        "was decoded as",
    ),
    "leaks an error": (
        "photo",
        "",
        ENCODER + "    def open(self, item):\n        try:\n            return super().open(item)\n"
        "        except DecodeError as error:\n            raise ValueError(str(error))",
        14,
        "raised ValueError",
    ),
    "takes anything": (
        "photo",
        "",
        "from PIL import Image"
        + ENCODER
        + "    def open(self, item):\n        try:\n            return super().open(item)\n"
        "        except DecodeError:\n            if not isinstance(item, bytes):\n                raise\n"
        "            return Image.new('RGB', (5, 5))",
        14,
        "empty bytes gave 5 tokens",
    ),
    "lies on its side": (
        "photo",
        "",
        "import io\nfrom PIL import Image" + ENCODER + "    def open(self, item):\n        super().open(item)\n"
        "        raw = item if isinstance(item, bytes) else open(item, 'rb').read()\n"
        "        clean = Image.open(io.BytesIO(raw))\n        clean.getexif().clear()\n"
        "        return load_image(Image.frombytes('RGB', clean.size, clean.convert('RGB').tobytes()))[0]\n",
        15,
        "EXIF",
    ),
    "shows what is hidden": (
        "photo",
        "",
        "import io\nfrom PIL import Image, ImageOps"
        + ENCODER
        + "    def open(self, item):\n        super().open(item)\n"
        "        raw = item if isinstance(item, bytes) else open(item, 'rb').read()\n"
        "        return ImageOps.exif_transpose(Image.open(io.BytesIO(raw))).convert('RGB')\n",
        15,
        "fully transparent pixels show through",
    ),
    "obeys a text": (
        "letters",
        "",
        ENCODER + "    def ids(self, text):\n        head, mark, tail = text.partition('<end>')\n"
        "        return super().ids(head) + ([1, *super().ids(tail)] if mark else [])",
        16,
        "made a control id",
    ),
    "makes media of a text": (
        "letters",
        "",
        ENCODER + "    def encode(self, item):\n        spans = super().encode(item)\n"
        "        if isinstance(item, str) and '<' in item:\n"
        "            spans += [Span(modality='image', data=torch.zeros(1, 3), key=spans[0].key)]\n        return spans",
        16,
        "made a span of 'image'",
    ),
}

BASES = {"photo": (PHOTO, PHOTO_PARTS), "letters": (LETTERS, LETTERS_PARTS)}


def plugin_name(what):
    """The words of a fault as the name of a plugin and its modality."""
    return what.replace("'", "").replace(" ", "-")


def sources(base, what, module_tail="", parts_tail=""):
    """(source of the plugin's module, source of the module of its parts)."""
    name = plugin_name(what)
    module, parts = (text.format(name=name) for text in BASES[base])
    return f"{module}\n{module_tail}\n", f"{parts}\n{parts_tail}\n"
