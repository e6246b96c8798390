"""`dvi audit`: decodes served answers again, without speculation, and compares token by token."""
