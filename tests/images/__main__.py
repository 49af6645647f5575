"""`python -m tests.images [NAME ...]` builds the named images, or all, and prints their tags."""

import sys

from tests.images.recipes import RECIPES, image

for name in sys.argv[1:] or sorted(RECIPES):
    print(image(name), flush=True)
