"""What an application of the demo does: it reads flights, and writes statistics and a journal."""
