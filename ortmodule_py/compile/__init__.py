"""The Dynamo backend: compiles each captured graph to one piece."""
