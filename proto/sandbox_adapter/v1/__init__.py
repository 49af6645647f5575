"""Generated code of contract version 1, beside the files it is made from."""
