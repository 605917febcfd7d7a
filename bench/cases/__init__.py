"""The suites. Each has ``cases(quick) -> list[Case]`` and ``plots(report, directory, stem) -> list[Path]``."""
