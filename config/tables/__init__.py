"""The tables of settings: a module for each, named as the table is in a file."""
