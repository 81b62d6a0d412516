"""Text of models, programs and servers: control tokens, what is shown of it, and secrets in it."""
