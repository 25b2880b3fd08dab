"""The cost model against published measurements: tables, predictions by the product, scores."""
