"""`python -m energylm` is `energylm`."""

from energylm.cli.main import main

if __name__ == "__main__":
    main()
