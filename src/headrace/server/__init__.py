"""The server: OpenAI's and Anthropic's protocols and the operator's routes over one engine in the same process."""
