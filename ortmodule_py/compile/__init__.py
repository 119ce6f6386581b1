"""The Dynamo backend: one captured graph in, one compiled piece out."""
