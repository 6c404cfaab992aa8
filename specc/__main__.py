"""`python -m specc`."""

from specc.cli import main

if __name__ == "__main__":
    main()
