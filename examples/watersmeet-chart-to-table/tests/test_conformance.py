from watersmeet_chart_to_table.marks import Mark

from watersmeet.testing import ModalityTests


class TestChartMarks(ModalityTests):
    modality = "chart-marks"

    def items(self):
        box = Mark(box=(10, 20, 30, 90), colour=(40, 80, 200))
        tick = {"box": [0, 10, 8, 20], "text": "20"}
        return [(100, 100, [box]), {"width": 200, "height": 100, "marks": [tick, {"box": [50, 20, 70, 90]}]}]

    def largest(self):
        return [(1000, 1000, [Mark(box=(i, i, i + 5, i + 5)) for i in range(400)])]
