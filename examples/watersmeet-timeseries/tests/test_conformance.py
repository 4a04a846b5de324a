from watersmeet.testing import ModalityTests


class TestTimeSeries(ModalityTests):
    modality = "timeseries"

    def largest(self):
        return [range(4096)]
