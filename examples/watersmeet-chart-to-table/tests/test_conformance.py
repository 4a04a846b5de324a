from watersmeet.testing import ModalityTests, PipelineTests


class TestChartMarks(ModalityTests):
    modality = "chart-marks"


class TestChartToTable(PipelineTests):
    pipeline = "chart-to-table"
