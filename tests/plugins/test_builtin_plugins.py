from watersmeet.plugins import get_registry
from watersmeet.plugins.parts import Decoder, Embedder, Encoder


def test_the_built_in_modalities_come_through_our_own_entry_points():
    found = get_registry()
    for name in ("text", "image", "video"):
        assert found.modality_owner(name).distribution == "watersmeet"
        assert found.modality(name).summary
    assert found.modality("text").writes and not found.modality("image").writes and found.modality("image").atomic


def test_their_parts_have_the_shape_of_the_contract():
    found = get_registry()
    image = found.encoder("image")
    assert isinstance(image, Encoder)
    assert isinstance(found.embedder("image", 16, image.settings), Embedder)
    assert issubclass(found.resolve_modality("text", "decoder"), Decoder)
