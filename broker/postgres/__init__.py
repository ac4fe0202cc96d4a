"""The database before the service uses it: our own server, migrations, checks, restores."""
