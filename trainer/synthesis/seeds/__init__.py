"""What tasks are composed of: operators of torch and layers of transformers, with how to build them."""
