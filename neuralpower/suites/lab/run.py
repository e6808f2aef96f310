"""The whole lab, or one step of it, and what is kept when it is interrupted."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from neuralpower.data.journal import sole_writer
from neuralpower.errors import InputError
from neuralpower.suites.lab import board, steps
from neuralpower.suites.lab.folder import Folder
from neuralpower.suites.lab.images import load_digits
from neuralpower.suites.lab.report import write_report
from neuralpower.suites.lab.training import Settings

STEPS = ("all", "train", "profile", "report")


@dataclass(frozen=True)
class Request:
    """What is to be done, and where its files go."""

    out: Path
    step: str = "all"
    settings: Settings = Settings()
    data_dir: Path | None = None
    batches: tuple[int, ...] = steps.BATCHES
    images: int | None = None  # of a profile; None: all test images
    by_shape: bool = False
    use_cuda: bool = True
    save: bool = False
    tensorboard: bool = True
    port: int | None = None  # of a TensorBoard to start

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be."""
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise InputError(f"profile-batches {self.batches}: one or more different sizes of 1 or more")
        if self.images is not None and self.images < 1:
            raise InputError(f"profile-images {self.images}: must be 1 or more")


def run(request: Request, tell: steps.Tell = lambda text: None) -> tuple[Path, ...]:
    """Do it; the paths of the report. After Ctrl-C the report tells of what there is, and the interruption goes on.

    Raises:
        InputError: data, folder or port cannot be used.
        DeviceError: training or profile failed.
    """
    folder = Folder(request.out)
    events = request.tensorboard and board.installed()
    if request.port is not None:
        board.check_port(request.port)
        if not events:
            raise InputError(
                "tensorboard-port: event files are off or tensorboard is missing (the extra `lab` brings it)"
            )
    elif request.tensorboard and not events:
        tell("tensorboard is not installed: no event files; pip install 'neuralpower[lab]' brings it")
    if request.step == "report":
        return write_report(folder)
    digits = load_digits(request.data_dir)
    tell(f"data: {digits.name}, {len(digits.train):,} images to learn from and {len(digits.test):,} to test on")
    places = steps.devices(request.use_cuda)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sole_writer(folder.path))
        process = None
        if request.port is not None:
            process = stack.enter_context(board.server(folder.path, request.port))
            tell(f"TensorBoard: http://localhost:{request.port}")
        try:
            steps.write_images(folder, digits)
            if request.step in ("all", "train"):
                steps.train(
                    folder, digits, request.settings, places[0], tensorboard=events, save=request.save, tell=tell
                )
            if request.step in ("all", "profile"):
                steps.profile(
                    folder, digits, places, request.batches, images=request.images, by_shape=request.by_shape, tell=tell
                )
        except KeyboardInterrupt:
            with contextlib.suppress(InputError):  # nothing to tell of yet
                write_report(folder)
                tell(f"interrupted: {folder.path / 'report.md'} tells of what there is; the same command continues")
            raise
        paths = write_report(folder)
        if process is not None:
            tell("done; Ctrl-C ends TensorBoard")
            board.serve(process)
    return paths
