"""Serve a language model to many users: what an engine's steps take, and what its users wait for.

surface      a step's time as a function of the requests in it
"""
