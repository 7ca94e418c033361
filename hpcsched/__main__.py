"""`python -m hpcsched`."""

from hpcsched.cli.main import main

if __name__ == "__main__":
    main()
