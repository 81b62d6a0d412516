"""Text from models, programs and servers: how it is shown, and how secrets are kept out of files."""
