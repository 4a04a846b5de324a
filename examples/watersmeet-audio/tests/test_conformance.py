from watersmeet.testing import ModalityTests


class TestAudio(ModalityTests):
    modality = "audio"
