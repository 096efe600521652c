"""What a fleet reports of an episode: tables from files, checked before anybody learns from it."""
