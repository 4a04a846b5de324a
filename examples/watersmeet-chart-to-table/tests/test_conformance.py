from watersmeet.testing import ModalityTests


class TestChartMarks(ModalityTests):
    modality = "chart-marks"
