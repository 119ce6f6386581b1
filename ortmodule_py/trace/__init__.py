"""From TorchDynamo's graph to one functional ATen graph."""
