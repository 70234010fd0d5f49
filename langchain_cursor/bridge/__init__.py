"""The bridge: cursor-sdk's Node process, which runs local agents for Python."""
