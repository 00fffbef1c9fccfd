"""Cases by topic; each module registers its own."""
