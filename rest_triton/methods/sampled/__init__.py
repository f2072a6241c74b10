"""Methods whose rows sample their neighbours."""
