"""Text of models, programs and servers: prompts, replies, control tokens, filters for output, and secrets."""
