"""The study: what helps a draft to learn from its traffic, simulated from recorded answers."""
