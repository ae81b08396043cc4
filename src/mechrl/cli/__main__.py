"""`python -m mechrl.cli`."""

from mechrl.cli.app import main

main()
