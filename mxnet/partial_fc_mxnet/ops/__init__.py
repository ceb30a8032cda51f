"""Operations on MXNet arrays and modules."""
