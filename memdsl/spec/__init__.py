"""The nouns: frozen, hashable data that holds no arrays and chooses no execution."""
