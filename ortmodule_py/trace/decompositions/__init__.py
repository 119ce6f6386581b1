"""ATen operators that are traced as other operators than torch's own decompositions."""
