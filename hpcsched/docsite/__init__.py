"""The documentation: reference pages made from the code, and all pages rendered as a small site."""
