"""Learning while a script trains: settings are tried in its own steps, and what is faster stays."""
