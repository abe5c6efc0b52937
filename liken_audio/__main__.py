"""`python -m liken_audio` is `liken-audio`."""

from liken_audio.cli import main

if __name__ == "__main__":
    main()
