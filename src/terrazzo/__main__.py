"""`python -m terrazzo` is `terrazzo`."""

from terrazzo.cli import main

if __name__ == "__main__":
    main()
