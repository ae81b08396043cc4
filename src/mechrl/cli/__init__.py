"""The command line: one file per group of commands. Nothing here is heavy; commands import what they need when they run."""


def main() -> None:
    """The entry point of `mechrl`."""
    from mechrl.cli.app import main

    main()
