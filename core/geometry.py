"""Rectangles with sides along the axes, shared by everything that points into a plane."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A rectangle; x1 and y1 are exclusive."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def width(self) -> float:
        return max(0.0, self.x1 - self.x0)

    @property
    def height(self) -> float:
        return max(0.0, self.y1 - self.y0)

    @property
    def area(self) -> float:
        return self.width * self.height

    @property
    def center(self) -> tuple[float, float]:
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2

    def intersection(self, other: "Box") -> float:
        """Area shared with `other`."""
        w = min(self.x1, other.x1) - max(self.x0, other.x0)
        h = min(self.y1, other.y1) - max(self.y0, other.y0)
        return w * h if w > 0 and h > 0 else 0.0

    def common(self, other: "Box") -> "Box | None":
        """What is in both, None where that is nothing."""
        if self.intersection(other) == 0:
            return None
        return Box(
            x0=max(self.x0, other.x0), y0=max(self.y0, other.y0), x1=min(self.x1, other.x1), y1=min(self.y1, other.y1)
        )

    def iou(self, other: "Box") -> float:
        """Intersection over union, 0 for two empty boxes."""
        shared = self.intersection(other)
        union = self.area + other.area - shared
        return shared / union if union > 0 else 0.0

    def contains(self, other: "Box", slack: float = 0.0) -> bool:
        return (
            other.x0 >= self.x0 - slack
            and other.y0 >= self.y0 - slack
            and other.x1 <= self.x1 + slack
            and other.y1 <= self.y1 + slack
        )

    def union(self, other: "Box") -> "Box":
        return Box(
            x0=min(self.x0, other.x0), y0=min(self.y0, other.y0), x1=max(self.x1, other.x1), y1=max(self.y1, other.y1)
        )

    def shifted(self, dx: float, dy: float) -> "Box":
        return Box(x0=self.x0 + dx, y0=self.y0 + dy, x1=self.x1 + dx, y1=self.y1 + dy)

    def clipped(self, width: float, height: float) -> "Box":
        return Box(
            x0=min(max(self.x0, 0), width),
            y0=min(max(self.y0, 0), height),
            x1=min(max(self.x1, 0), width),
            y1=min(max(self.y1, 0), height),
        )

    @classmethod
    def around(cls, boxes: list["Box"]) -> "Box":
        """The smallest box around `boxes` (at least one)."""
        return cls(
            x0=min(b.x0 for b in boxes),
            y0=min(b.y0 for b in boxes),
            x1=max(b.x1 for b in boxes),
            y1=max(b.y1 for b in boxes),
        )
