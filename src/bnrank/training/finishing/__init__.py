"""From trained networks to exact stationary points and local minima."""
